"""The Python environments of the peer tests, each made once in the cache folder."""
import os
import subprocess
import sys
import venv
from pathlib import Path

SKIPPED = 77  # the exit code that says so


def cache():
    if 'REDCO_CACHE' in os.environ:
        return Path(os.environ['REDCO_CACHE'])
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'redco'


def run_with(name, packages):
    """Runs the calling script again in the environment `name`, which has the pinned `packages`;
    returns there. Exits with SKIPPED where they cannot be installed."""
    folder, wanted = cache() / 'peers' / name, '\n'.join(packages)
    if Path(sys.prefix) == folder:
        return
    python, done = folder / 'bin' / 'python', folder / 'packages.txt'
    if not (done.exists() and done.read_text() == wanted):
        venv.create(folder, with_pip=True, clear=True)
        command = [python, '-m', 'pip', 'install', '--quiet', '--retries', '1', *packages]
        if subprocess.run(command).returncode != 0:
            print(f'SKIPPED: pip cannot install {", ".join(packages)}; see its message above')
            sys.exit(SKIPPED)
        done.write_text(wanted)
    os.execv(python, [python, *sys.argv])
