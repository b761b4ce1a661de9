"""One measurement in a fresh process, and what is known about the machine."""

import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    """What did not work, in one line."""


def run(command, threads, timeout_secs):
    """What the program measured, with what is seen from outside: its largest resident set and what else ran.

    `other_share` is the share of all cores that other processes, or the host of a virtual machine, took meanwhile: where it
    is above a few percent, the figures are worth nothing.
    """
    environment = os.environ | {
        name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    }
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        begun, busy_before = time.monotonic(), busy_secs()
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment, preexec_fn=die_first
            )
        except OSError as error:
            raise Failed(f"cannot be started: {error}") from error
        try:
            status, usage = wait(child, begun + timeout_secs)
        finally:
            if child.returncode is None:
                child.kill()
                child.wait()
        wall_secs, busy = time.monotonic() - begun, busy_secs() - busy_before
        out.seek(0)
        errors.seek(0)
        lines = [line for line in out.read().splitlines() if line.strip()]
        last_error = last_line(errors.read())
    max_rss = usage.ru_maxrss * 1024
    if status < 0:
        raise Failed(f"killed by {signal.Signals(-status).name} when it held {max_rss / 2**30:.1f} GiB")
    if status > 0:
        raise Failed(last_error or f"exit code {status}")
    try:
        measured = json.loads(lines[-1])
        seconds_is_good = measured["seconds"] > 0 and measured["tokens"] > 0
    except (IndexError, ValueError, TypeError, KeyError) as error:
        raise Failed(f"printed no measurement: {lines[-1:]}") from error
    if not seconds_is_good:
        raise Failed(f"measured nothing: {measured}")
    other = max(0.0, busy - usage.ru_utime - usage.ru_stime) / (wall_secs * os.cpu_count())
    return measured | {"max_rss_bytes": max_rss, "wall_seconds": wall_secs, "other_share": other}


def die_first():
    """If memory runs out, this process is the one to be killed."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass


def wait(child, deadline):
    """Exit code (negative: the signal) and resource usage of `child`."""
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode, usage
        if time.monotonic() > deadline:
            raise Failed("took longer than --timeout")
        time.sleep(0.05)


def last_line(text):
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def busy_secs():
    """Seconds that all cores together have worked, or that another machine took from them."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def output_of(*command):
    try:
        result = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    except OSError:
        return "unknown"
    return result.stdout.strip() if result.returncode == 0 else "unknown"


def machine():
    """Processor, memory and versions."""
    model = platform.processor() or "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return {
        "cpu": names[0] if names else model,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "transformers": importlib.metadata.version("transformers"),
        "rustc": output_of("rustc", "--version").removeprefix("rustc "),
        "envace": output_of("git", "describe", "--always", "--dirty", "--abbrev=12"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def peer(work, model, spec):
    return [sys.executable, os.path.join(HERE, "peers.py"), work, "--model", model, "--spec", spec]


def product(program, work, model, spec):
    return [program, work, "--model", model, "--spec", spec]
