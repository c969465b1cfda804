"""The room that needs torch: one case in, one outcome out."""
