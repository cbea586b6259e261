"""`little-lm train`: set up, train, say how to go on."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from rich.console import Console

from littlelm.errors import UserError
from littlelm.train.configs import load_run


def run_training(file: Path, overrides: list[str]) -> int:
    """Train FILE. Returns the exit code: 0 when the run is complete, 130/143 after an interrupt that was saved."""
    config = load_run(file, overrides).config  # before torch: a misspelt key costs a quarter of a second, not ten
    is_main = os.environ.get("RANK", "0") == "0"
    console = Console(quiet=not is_main, highlight=False, soft_wrap=True, markup=False)

    from littlelm.train.malloc import raise_malloc_thresholds

    raise_malloc_thresholds()  # before torch allocates anything
    from littlelm.train import distributed
    from littlelm.train.header import print_footer, print_header
    from littlelm.train.interrupt import Interrupt
    from littlelm.train.ledger import Ledger
    from littlelm.train.run_lock import RunLock
    from littlelm.train.setup import is_complete, set_up
    from littlelm.train.trainer import Trainer

    directory = Path(config.run.dir).expanduser()
    if is_complete(config, directory):
        console.print(f"{directory} is complete ({config.total_steps} steps). Next: little-lm sample {directory}")
        return 0
    lock = RunLock(directory)
    if is_main:
        lock.take()
    price = config.budget.usd_per_gpu_hour
    world_size = distributed.environment_world_size()
    ledger = Ledger(directory / "ledger.json" if is_main else None, None if price is None else price * world_size)
    try:
        ready = set_up(config, console, ledger, lock)
        run = ready.run
        print_header(run, ready.resumed)
        with Interrupt() as interrupt:
            Trainer(run, ready.runner, ready.resumed).train(interrupt)
            if run.interrupted:
                console.print(
                    f"stopped at step {run.state.step} of {run.total_steps} and saved. To go on: {command_line()}"
                )
                ledger.close()
                return 128 + (interrupt.signal_number or 2)
            print_footer(run, run.last_records.get("eval", {}))
        ledger.close()
    except BaseException:
        try:
            ledger.close()
        except UserError as second:  # the first error is the one to tell
            console.print(f"then {second}", markup=False)
        raise
    finally:
        distributed.stop()
        lock.release()
    return 0


def command_line() -> str:
    """The command that started this process, as a user would type it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return shlex.join(["little-lm", *sys.argv[1:]])
    nodes, processes = os.environ.get("GROUP_WORLD_SIZE", "1"), os.environ.get("LOCAL_WORLD_SIZE", "1")
    place = "--standalone" if nodes == "1" else f"--nnodes={nodes} <rendezvous options as before>"
    return f"torchrun {place} --nproc-per-node={processes} -m littlelm.cli {shlex.join(sys.argv[1:])}"
