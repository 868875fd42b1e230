"""The ways by which containers get GPUs: `configure`, CDI, the runtime, NRI, and the engines that call them."""
