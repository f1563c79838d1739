import subprocess
import sys


def test_the_store_needs_no_spark():
    program = """
import sys
import forebay.store.rmw, forebay.store.aligned
modules = [name for name, module in sys.modules.items() if name.startswith("forebay.store")]
for name in modules:
    source = open(sys.modules[name].__file__).read()
    assert "pyspark" not in source and "forebay.spark" not in source, name
print(len(modules))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(result.stdout) >= 8
