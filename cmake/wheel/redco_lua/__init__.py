"""The program redco-lua, for the torch of this Python environment."""

import os

__version__ = "@VERSION@"
#: The release of torch whose libraries the program was built with.
torch_version = "@TORCH@"
#: The folder of examples/ and of stubs/ for editors.
share = os.path.join(os.path.dirname(os.path.abspath(__file__)), "share", "redco")
