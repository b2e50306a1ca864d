"""Training: data on a device, the fleet of replicas, checkpoints, and sweeps over many runs."""
