"""DiffusionRet's generator: a generated distribution over the best candidates of any first stage."""
