"""The command `pentatron` of the wheel: becomes the program, with the torch that this Python would import."""
import os
import sys

from pentatron._program import Error, environment, program


def main() -> None:
    try:
        path = program()
        os.execve(path, [path, *sys.argv[1:]], environment())
    except (Error, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
