"""`bm25v` and `python -m bm25v` run the command line."""

import atexit
import gc
import signal


def main() -> None:
    atexit.register(gc.freeze)  # else the interpreter looks for garbage before it frees everything
    # While modules are imported, Ctrl-C ends the process at once, without a traceback.
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bm25v.cli import main as run

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
