"""Entry point of the command `opgraft`: what must happen before TensorFlow is imported."""

import os
import sys

INTERRUPTED = 130  # what a shell expects of a command that Ctrl-C has ended


def main() -> None:
    """Keep TensorFlow's greetings off the terminal, then run the command line."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from opgraft.cli import main as run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()
