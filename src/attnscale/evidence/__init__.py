"""From the kernels that ran to what they say. Pure: no torch, no files, no clock."""
