"""The kubelet: sockets, gRPC, the DRA driver and the device plugin."""
