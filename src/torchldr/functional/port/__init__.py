"""The port product: LDR-TD in near-linear time; `product` says how."""
