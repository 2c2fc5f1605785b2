# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.runner` is horovodrun."""

import sys

from horovod.launcher.cli import main

sys.exit(main())
