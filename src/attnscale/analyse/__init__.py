"""From records to tables. Needs no torch, no Hydra and no GPU."""
