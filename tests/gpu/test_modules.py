"""On a GPU: every layer with every class, as on the CPU."""

import torch

from ..test_contract_modules import every_case, given, gradients, made, tensors


@every_case
def test_the_same_as_on_a_cpu(kind, name):
    layer, x = made(kind, name), given(kind).requires_grad_()
    wanted = [*tensors(layer(x)), *gradients(layer, x)]
    layer.cuda()
    x = x.detach().cuda().requires_grad_()
    found = [*tensors(layer(x)), *gradients(layer, x)]
    torch.testing.assert_close(found, wanted, check_device=False)
