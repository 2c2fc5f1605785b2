# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.launcher` is horovodrun."""

import sys

from horovod.launcher.cli import main

sys.exit(main())
