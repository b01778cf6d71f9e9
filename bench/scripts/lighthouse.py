"""torchft's lighthouse, where torchft has no command: `python lighthouse.py --bind ADDRESS ...`."""

from torchft._torchft import lighthouse_main

lighthouse_main()
