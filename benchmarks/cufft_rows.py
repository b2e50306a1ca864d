"""Whether FFTs of a GPU keep rows apart: a row that is not a number, or large, must not change the next."""

import torch


def main() -> None:
    for dtype in (torch.float32, torch.float64):
        for n in (9, 15, 63, 64, 129, 225, 256, 729, 1024, 1225, 4096):
            x = torch.randn(5, n, dtype=dtype, device="cuda")
            bad = x.clone()
            bad[1], bad[2] = torch.nan, 1e30
            said = []
            for name, transform in (("rfft", torch.fft.rfft), ("fft", torch.fft.fft)):
                alone, together = transform(x), transform(bad)
                off = (together - alone)[[0, 3, 4]].abs().amax(-1) / alone[[0, 3, 4]].abs().amax(-1)
                said.append(f"{name} {off.nan_to_num(torch.inf).max().item():.0e}")
            back = [torch.fft.irfft(torch.fft.rfft(y), n) for y in (x, bad)]
            said.append(
                f"irfft {(back[1] - back[0])[[0, 3, 4]].abs().max().nan_to_num(torch.inf).item():.0e}"
            )
            print(dtype, n, *said)


if __name__ == "__main__":
    main()
