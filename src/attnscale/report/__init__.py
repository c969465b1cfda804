"""From tables to what people read: figures, page, terminal, W&B. Needs no torch and no Hydra."""
