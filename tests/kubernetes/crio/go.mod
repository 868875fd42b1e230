// What gives the nodes of the test cluster that run CRI-O their images: of the versions that CRI-O has.
module nvc.test/crio-load

go 1.26.0

require (
	go.podman.io/image/v5 v5.38.0
	go.podman.io/storage v1.61.1-0.20251212224252-b0f86df5a665
)
