"""Deliberately wrong adapters, one mistake each, for tests in which a suite must fail.

From a checkout any of them runs on the command line: ``dsv4-conformance run --impl tests.miniatures:SinkDropped``.
"""

from tests.miniatures.base import Miniature as Miniature
from tests.miniatures.bits import *  # noqa: F403
from tests.miniatures.contract import *  # noqa: F403
from tests.miniatures.formats import *  # noqa: F403
from tests.miniatures.kernels import *  # noqa: F403
from tests.miniatures.semantic import *  # noqa: F403
from tests.miniatures.semantic import Zeros

ZerosAdapter = Zeros
