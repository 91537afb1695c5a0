"""What an elastic model is compared with: fixed-size models of other families, each trained once per budget."""
