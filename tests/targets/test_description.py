"""Device descriptions: every shipped one is sound, and a wrong one is refused by its key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from essm_deploy.errors import TargetError
from essm_deploy.targets.description import find_target, known_targets, read_target

# NVIDIA's table of compute capabilities.
CAPABILITIES = {
    "t4": "7.5",
    "a100": "8.0",
    "rtx3090": "8.6",
    "jetson-orin-nano": "8.7",
    "jetson-agx-orin": "8.7",
    "rtx4090": "8.9",
    "l4": "8.9",
    "h100": "9.0",
    "h200": "9.0",
    "b200": "10.0",
    "rtx5090": "12.0",
}
RTX = {"7.5", "8.0", "8.6", "8.9", "12.0", "12.1"}
SOUND = """
name = "mine"
description = "a device"
kind = "gpu"
backends = ["tensorrt"]
precision = ["fp32"]
reach = { via = "local" }
[device]
compute_capability = "8.6"
memory_bytes = 1024
bandwidth_bytes_per_s = 1e9
fp32_flops_per_s = 1e9
source = "a data sheet"
"""


def test_every_shipped_description_is_sound_and_is_called_what_its_file_is_called() -> None:
    for name, path in known_targets().items():
        assert read_target(path).name == name


def test_every_device_that_people_deploy_on_is_described() -> None:
    assert {name: find_target(name).compute_capability for name in CAPABILITIES} == CAPABILITIES


def test_a_name_that_is_none_is_told_what_was_meant_or_what_there_is() -> None:
    with pytest.raises(
        TargetError, match=r"^unknown target 'rtx309'; did you mean 'rtx3090'\? A path to a \.toml file describes"
    ):
        find_target("rtx309")
    with pytest.raises(
        TargetError, match=r"known: a100, .*, web-wasm\. A path to a \.toml file describes a device of your own$"
    ):
        find_target("zzz")
    with pytest.raises(TargetError, match=r"nowhere\.toml: cannot be read"):
        find_target("nowhere.toml")


@pytest.mark.parametrize("name", CAPABILITIES)
def test_the_rtx_flavour_is_offered_exactly_where_it_builds(name: str) -> None:
    target = find_target(name)
    assert ("tensorrt-rtx" in target.backends) == (target.compute_capability in RTX)
    assert target.backends[0] == "tensorrt"


@pytest.mark.parametrize("name", CAPABILITIES)
def test_figures_have_the_size_of_such_devices_and_a_source(name: str) -> None:
    device = find_target(name).device
    assert device is not None
    assert 8e9 < device.memory_bytes < 200e9
    assert 50e9 < device.bandwidth_bytes_per_s < 10e12
    assert 1e12 < device.fp32_flops_per_s < 200e12
    assert device.fp16_flops_per_s is None or device.fp16_flops_per_s > 1.5 * device.fp32_flops_per_s
    assert device.unified_memory == name.startswith("jetson")
    assert device.source.startswith("NVIDIA ")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('precision = ["fp32"]', 'precision = ["int4"]', "precision"),
        ('precision = ["fp32"]', "precision = []", "precision"),
        ('compute_capability = "8.6"', "", "state it under"),
        ('compute_capability = "8.6"', 'compute_capability = "sm86"', "compute_capability"),
        ('compute_capability = "8.6"', 'compute_capability = "8.6"\nfp8_flops = 1.0', "unknown key 'device.fp8_flops'"),
        ('source = "a data sheet"', 'source = ""', "source"),
        ('source = "a data sheet"', "", "'device.source' is missing"),
        ("memory_bytes = 1024", 'memory_bytes = "1 GiB"', "memory_bytes"),
        ("memory_bytes = 1024", "memory_bytes = 1024\nunified_memory = 1", "unified_memory"),
        ('"tensorrt"', '"trt"', "backends"),
    ],
)
def test_a_wrong_description_is_refused_by_its_key(tmp_path: Path, before: str, after: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SOUND)
    assert read_target(path).compute_capability == "8.6"
    path.write_text(SOUND.replace(before, after))
    with pytest.raises(TargetError, match=message):
        read_target(path)


SSH = """
name = "kitchen"
description = "a pi"
kind = "cpu"
backends = ["onnxruntime"]
precision = ["fp32"]
[reach]
"""


@pytest.mark.parametrize(
    "keys",
    [
        'host = "pi@kitchen"',
        'host = "kitchen"\nport = 2222\npython = "~/my env/bin/python"\ndirectory = "/data/essm deploy"\nconnect_timeout_s = 1',
        'host = "fe80::1%eth0"',
        'host = "192.168.1.7"',
    ],
)
def test_a_device_over_ssh_is_described(tmp_path: Path, keys: str) -> None:
    path = tmp_path / "kitchen.toml"
    path.write_text(SSH + 'via = "ssh"\n' + keys)
    reach = read_target(path).reach
    assert reach.via == "ssh"
    assert reach.host
    assert reach.model_dump().keys() == {"via", "host", "port", "python", "directory", "connect_timeout_s"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('via = "ssh"', "needs the key 'host'"),
        ('via = "local"\nhost = "kitchen"', "'host' does not belong to via = 'local'; allowed: via"),
        ('via = "node"\npython = "python3"', "'python' does not belong to via = 'node'"),
        ('via = "chromium"\nport = 22', "'port' does not belong"),
        ('via = "telnet"', "'local', 'ssh', 'node' or 'chromium'"),
        ('via = "ssh"\nhost = "-oProxyCommand=reboot"', "reach.host"),
        ('via = "ssh"\nhost = "pi@-x"', "reach.host"),
        ('via = "ssh"\nhost = "a b"', "reach.host"),
        ('via = "ssh"\nhost = "a;b"', "reach.host"),
        ('via = "ssh"\nhost = "kitchen\\n"', "reach.host"),
        ('via = "ssh"\nhost = "kitchen"\nport = 0', "reach.port"),
        ('via = "ssh"\nhost = "kitchen"\nport = 65536', "reach.port"),
        ('via = "ssh"\nhost = "kitchen"\npython = "-c"', "reach.python"),
        ('via = "ssh"\nhost = "kitchen"\npython = "a\\nb"', "reach.python"),
        ('via = "ssh"\nhost = "kitchen"\npython = "wow!"', "reach.python"),
        ('via = "ssh"\nhost = "kitchen"\npython = ""', "reach.python"),
        ('via = "ssh"\nhost = "kitchen"\ndirectory = "/"', "reach.directory"),
        ('via = "ssh"\nhost = "kitchen"\ndirectory = "~"', "reach.directory"),
        ('via = "ssh"\nhost = "kitchen"\ndirectory = "~/"', "reach.directory"),
        ('via = "ssh"\nhost = "kitchen"\ndirectory = "essm"', "reach.directory"),
        ('via = "ssh"\nhost = "kitchen"\ndirectory = "~/a/../.."', "reach.directory"),
        ('via = "ssh"\nhost = "kitchen"\nconnect_timeout_s = "10s"', "reach.connect_timeout_s"),
        ('via = "ssh"\nhost = "kitchen"\nconnect_timeout_s = 0', "reach.connect_timeout_s"),
        ('via = "ssh"\nhost = "kitchen"\nuser = "pi"', "unknown key 'reach.user'; allowed: "),
    ],
)
def test_keys_of_reach_that_do_not_hold_together_are_named(tmp_path: Path, keys: str, message: str) -> None:
    path = tmp_path / "kitchen.toml"
    path.write_text(SSH + keys)
    with pytest.raises(TargetError, match=re.escape(message)) as caught:
        read_target(path)
    assert str(caught.value).startswith(f"{path}: ")
