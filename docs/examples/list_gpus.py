"""Lists the GPUs of this host and their MIG devices. Usage: list_gpus.py [DRIVER_ROOT]

Without DRIVER_ROOT, it looks where nvc-cli does: as the configuration file says.
"""

import sys

import nvc


def main() -> int:
    try:
        given = nvc.DriverOptions(root=sys.argv[1]) if len(sys.argv) > 1 else None
        with nvc.Driver(given) if given else nvc.Driver.configured() as driver:
            print(f"driver {driver.version}, CUDA {driver.cuda_version}")
            for gpu in driver.gpus:
                print(f"{gpu.index}: {gpu.name}, {gpu.memory} MiB, {gpu.uuid}")
                for mig in gpu.mig:
                    print(f"  {gpu.index}:{mig.index}: {mig.memory} MiB, {mig.uuid}")
    except nvc.NvcError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


sys.exit(main())
