"""What depends on the kind of model, device or optimizer: adapters of PEFT, FSDP, fused steps, batches."""
