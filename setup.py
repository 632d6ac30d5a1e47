"""What pyproject.toml cannot say: a wheel takes the folder data/ along, as helpers/data."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithData(build_py):
    def run(self) -> None:
        if self.editable_mode:  # helpers finds data/ beside itself
            super().run()
            return
        # a module that an earlier build left behind would get into the wheel
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        shutil.copytree("data", Path(self.build_lib, "helpers", "data"))


setup(cmdclass={"build_py": BuildWithData})
