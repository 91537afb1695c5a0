"""Studies: one TOML file each, run by essm_train.study."""
