"""Products as exporters take them: modules in which everything but the input is a constant.

Modules take (b, n) to (b, m), in operations that ONNX has. `form` says in a few words how; a form that begins
with "made" computes the dense matrix from parameters in nodes that do not depend on the input, which
onnxruntime runs when it loads.
"""
