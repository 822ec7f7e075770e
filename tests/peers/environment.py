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
        try:
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([python, '-m', 'pip', 'install', '-q', '--retries', '1', *packages],
                           check=True)
        except subprocess.CalledProcessError:
            print(f'SKIPPED: cannot install {", ".join(packages)}; the message above says why')
            sys.exit(SKIPPED)
        done.write_text(wanted)
    os.execv(python, [python, *sys.argv])
