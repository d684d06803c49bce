"""Ask whether a convolution in C is right: of one that is, and of one that is almost."""

import pathlib
import tempfile

import opgraft as og

kernels = pathlib.Path(og.__file__).parent / "kernels"
shipped = og.verify(og.c_function(kernels / "conv2d.c"))
print(shipped)  # three verdicts: forward, gradient, contract
assert shipped.passed

# The same, but SAME puts the odd row and column of zeros above and left. With 3 x 3 kernels at
# stride 1 there is none, so a network seems to train well.
text = (kernels / "conv2d.c").read_text()
right = "axis.before = zeros > 0 ? zeros / 2 : 0;"
assert right in text
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "almost.c").write_text(text.replace(right, right.replace("zeros / 2", "(zeros + 1) / 2")))

almost = og.verify(og.c_function(folder / "almost.c"))
assert not almost.passed  # a wrong kernel is reported, never raised
assert almost.findings == ("agrees with the odd padding above and left",)
assert almost.gradient.passed  # it is still that of the exact convolution
print(f"\nalmost.c: {almost.findings[0]}")
for check in almost.failures:
    print(f"  {check.name}: {check.message}")

almost.save_html(folder / "report.html")  # with maps of where it deviates; needs no other file
(folder / "report.json").write_text(almost.to_json())
print(f"report: {folder / 'report.html'}, {(folder / 'report.html').stat().st_size // 1000} kB")
