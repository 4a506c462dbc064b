"""Code specific to a kind of model, device or optimizer: PEFT adapters, FSDP, fused steps, batches."""
