"""Hugging Face's folders: a compressed model saved and loaded as any other. Needs transformers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import torchldr
from torchldr import cli
from torchldr.nn.description import split_rounding

transformers = pytest.importorskip("transformers")
pytest.importorskip("torchldr.hf")


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=32,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def llama(tied=True):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=96, max_position_embeddings=32, tie_word_embeddings=tied,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


IDS = torch.arange(12).reshape(2, 6)
PLAN = {
    "*query*": torchldr.Structure("low_rank", rank=4),
    "*key*": torchldr.Structure("cauchy_like", rank=2),
    "*value*": torchldr.Structure("ldr_sd", rank=2),
    "*dense*": torchldr.Structure("vandermonde_like", rank=2),
    "*intermediate*": torchldr.Structure("fastfood"),
}


def same(a, b):
    mine, theirs = a.state_dict(), b.state_dict()
    return list(mine) == list(theirs) and all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_every_kind_of_constant_comes_back_bit_for_bit(tmp_path):
    model = bert()
    torchldr.compress_(model, PLAN)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path)
    assert same(model, again)
    with torch.no_grad():
        assert torch.equal(model(IDS).last_hidden_state, again(IDS).last_hidden_state)
    again.save_pretrained(tmp_path / "second")  # and once more, from what was loaded
    third = transformers.AutoModel.from_pretrained(tmp_path / "second")
    assert same(model, third)
    with torch.no_grad():
        assert torch.equal(model(IDS).last_hidden_state, third(IDS).last_hidden_state)


FRESH = """
import sys, torch, transformers, torchldr.hf
largest = 0
real = torch.empty
from torch.overrides import TorchFunctionMode
class Watch(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        global largest
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.device.type != "meta" and out.ndim == 2:
            largest = max(largest, out.numel())
        return out
with Watch():
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
assert largest < 64 * 96, largest
ids = torch.arange(12).reshape(2, 6)
with torch.no_grad():
    assert torch.equal(model(ids).logits, torch.load(sys.argv[2], weights_only=True))
print(model.generate(ids, max_new_tokens=3, do_sample=False).tolist())
"""


def test_a_fresh_process_loads_without_dense_weights(tmp_path):
    model = llama()
    torchldr.compress_(model, {"*_proj": torchldr.Structure("low_rank", rank=4)})
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    with torch.no_grad():
        torch.save(model(IDS).logits, tmp_path / "logits.pt")
    found = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path / "model"), str(tmp_path / "logits.pt")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == model.generate(IDS, max_new_tokens=3, do_sample=False).tolist()


def test_with_and_without_a_head_in_another_dtype(tmp_path):
    model = llama()
    torchldr.compress_(model, {"*_proj": torchldr.Structure("low_rank", rank=4)})
    model.save_pretrained(tmp_path)
    base = transformers.AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
    layer = base.layers[0].mlp.up_proj
    assert isinstance(layer, torchldr.StructuredLinear)
    assert torch.equal(layer.G, model.model.layers[0].mlp.up_proj.G.double())
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map="cpu")
    assert whole.lm_head.weight is whole.model.embed_tokens.weight
    assert same(model, whole)


def test_dense_layers_again_are_saved_as_such(tmp_path):
    model = bert()
    torchldr.compress_(model, PLAN)
    torchldr.materialize_(model)
    model.save_pretrained(tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    again = transformers.AutoModel.from_pretrained(tmp_path)
    assert same(model, again)


@pytest.mark.parametrize("plan", [None, PLAN])
def test_folders_of_format_2_are_read(tmp_path, plan):
    """They had what was rounded beside the layers."""
    model = bert()
    if plan:
        torchldr.compress_(model, plan)
    torchldr.quantize_(model)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    said = config["quantization_config"]
    assert said["version"] == 3
    layers, said["rounded"] = split_rounding(said["layers"])
    config["quantization_config"] = {**said, "layers": layers, "version": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = transformers.AutoModel.from_pretrained(tmp_path)
    assert same(model, again)
    again.save_pretrained(tmp_path / "second")
    assert (
        json.loads((tmp_path / "second" / "config.json").read_text())["quantization_config"]["version"] == 3
    )
    assert same(model, transformers.AutoModel.from_pretrained(tmp_path / "second"))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("plan", [None, PLAN])
def test_rounded_layers_come_back_bit_for_bit(tmp_path, plan, training):
    """They came back with new random weights, and only a table of transformers said so."""
    model = bert()
    if plan:
        torchldr.compress_(model, plan)
    torchldr.quantize_(model, training=training)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path)
    assert same(model, again)
    with torch.no_grad():
        assert torch.equal(model(IDS).last_hidden_state, again(IDS).last_hidden_state)
    learned = [name for name, p in model.named_parameters() if p.requires_grad]
    assert [name for name, p in again.named_parameters() if p.requires_grad] == learned
    again = again.dequantize()
    again.save_pretrained(tmp_path / "float")
    third = transformers.AutoModel.from_pretrained(tmp_path / "float")
    assert type(third.encoder.layer[0].intermediate.dense) is torch.nn.Linear
    with torch.no_grad():
        expected = model(IDS).last_hidden_state
        torch.testing.assert_close(third(IDS).last_hidden_state, expected, rtol=0.1 * training, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_rounded_heads_come_back(tmp_path, tied):
    model = llama(tied)
    torchldr.quantize_(model)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    model.save_pretrained(tmp_path / "all")
    assert same(model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "all"))
    torchldr.quantize_(model, where=lambda name, module: name == "lm_head")
    model.save_pretrained(tmp_path / "head")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "head")
    assert same(model, again)
    assert torch.equal(model(IDS).logits, again(IDS).logits)


@pytest.mark.parametrize("change", [torchldr.quantize_, lambda m: torchldr.compress_(m, PLAN)])
def test_layers_that_others_changed_later(tmp_path, change):
    """Their tensors came back as what was in memory, and only a table of transformers said so."""
    model = bert()
    change(model)
    model.pooler.dense = torch.nn.Linear(64, 64)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"does not fit the tensors: pooler\.dense\..* is not among them"):
        transformers.AutoModel.from_pretrained(tmp_path)


def test_what_holds_or_loads_a_model_declares_its_layers(tmp_path):
    """Only `compress_` on the model itself did."""
    holder = torch.nn.ModuleDict({"bert": bert()})
    torchldr.compress_(holder, PLAN)
    torchldr.save_compressed(holder["bert"], tmp_path / "ours")
    for i, model in enumerate((holder["bert"], torchldr.load_compressed(bert(), tmp_path / "ours"))):
        model.save_pretrained(tmp_path / str(i))
        assert same(model, transformers.AutoModel.from_pretrained(tmp_path / str(i)))


@pytest.mark.parametrize("kind", [dict, transformers.BitsAndBytesConfig])
def test_another_quantization_is_not_overwritten(tmp_path, kind):
    model = bert()
    torchldr.save_compressed(model, tmp_path)
    model.config.quantization_config = said = kind(quant_method="bitsandbytes")
    structure = torchldr.Structure("low_rank", rank=4)
    for change in (
        lambda: torchldr.compress_(model, structure),
        lambda: torchldr.quantize_(model),
        lambda: torchldr.load_compressed(model, tmp_path),
    ):
        with pytest.raises(ValueError, match=r"quantized by bitsandbytes.*dequantize"):
            change()
        assert model.config.quantization_config is said
        assert type(model.pooler.dense) is torch.nn.Linear


def test_a_model_that_was_read_from_gguf_can_be_saved(tmp_path):
    """transformers makes its weights dense, and forbids to save them under the quantization they had."""
    quantizer = pytest.importorskip("transformers.quantizers.quantizer_gguf").GgufHfQuantizer
    settings = transformers.utils.quantization_config
    model = bert()
    model.quantization_method = settings.QuantizationMethod.GGUF
    model.hf_quantizer = quantizer(settings.GgufConfig())
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained(tmp_path)
    torchldr.compress_(model, {"*query*": torchldr.Structure("low_rank", rank=4)})
    model.save_pretrained(tmp_path)
    assert same(model, transformers.AutoModel.from_pretrained(tmp_path))


def test_a_config_that_does_not_fit(tmp_path):
    model = bert()
    torchldr.compress_(model, {"*query*": torchldr.Structure("low_rank", rank=4)})
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    wrong = {**config["quantization_config"], "version": 99}
    file.write_text(json.dumps({**config, "quantization_config": wrong}))
    with pytest.raises(ValueError, match="version 99"):
        transformers.AutoModel.from_pretrained(tmp_path)
    layers = config["quantization_config"]["layers"]
    layers["encoder.layer.7"] = layers["encoder.layer.0.attention.self.query"]
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"no layer encoder\.layer\.7"):
        transformers.AutoModel.from_pretrained(tmp_path)
    del layers["encoder.layer.7"]
    layers["encoder.layer.0.attention.self.query"]["shape"] = [3, 5]
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"query.*\[3, 5\]"):
        transformers.AutoModel.from_pretrained(tmp_path)


def test_lora_on_a_compressed_model():
    peft = pytest.importorskip("peft")
    model = llama()
    torchldr.compress_(model, {"*_proj": torchldr.Structure("low_rank", rank=4)})
    with torch.no_grad():
        before = model(IDS).logits
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, torchldr.hf.lora_config(config))
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert len(trained) == 8
    assert all("lora_" in name for name in trained)
    out = adapted(IDS, labels=IDS)
    assert not torch.allclose(out.logits, before)
    out.loss.backward()
    with adapted.disable_adapter(), torch.no_grad():
        assert torch.equal(adapted(IDS).logits, before)
    with pytest.raises(ValueError, match="cannot be merged"):
        adapted.merge_and_unload()
    with torch.no_grad():
        expected = torchldr.materialize_(adapted)(IDS).logits
        torch.testing.assert_close(adapted.merge_and_unload()(IDS).logits, expected)


@pytest.mark.parametrize("start", ["pissa", "olora", "corda", "loftq", "lora_ga"])
def test_adapters_that_would_change_a_structured_weight(start):
    """They wrote to a copy, so that the model gave other numbers."""
    config = pytest.importorskip("peft").LoraConfig(r=2, target_modules=["q_proj"])
    config.init_lora_weights = start
    with pytest.raises(ValueError, match="changes the weight of the layer itself"):
        torchldr.hf.lora_config(config)


def test_offloaded_weights_are_not_changed():
    """Integers and dense weights were made on the meta device, and the model gave other numbers."""
    accelerate = pytest.importorskip("accelerate")
    model = llama()
    torchldr.compress_(model, {"*q_proj": torchldr.Structure("low_rank", rank=4)})
    accelerate.cpu_offload(model, execution_device="cpu")
    expected = model(IDS).logits
    for change in (torchldr.quantize_, torchldr.materialize_):
        with pytest.raises(ValueError, match=r"_: the weights of .* are offloaded"):
            change(model)
    assert torch.equal(model(IDS).logits, expected)


def test_rounded_layers_may_lie_on_a_disk(tmp_path):
    """The constants of Cauchy-like layers were on the meta device, where the integers lie between calls."""
    model = bert()
    torchldr.compress_(model, PLAN)
    torchldr.quantize_(model)
    model.save_pretrained(tmp_path)
    places = {"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"}
    again = transformers.AutoModel.from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "o")
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(again(IDS).last_hidden_state, model(IDS).last_hidden_state)


def test_layers_with_adapters_are_not_changed():
    """Adapters were merged into a copy of what the new layer computes, and lost."""
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match=r"compress_: .*q_proj has an adapter of peft"):
        torchldr.compress_(adapted, torchldr.Structure("low_rank", rank=4))
    with pytest.raises(ValueError, match=r"quantize_: .*q_proj has an adapter of peft"):
        torchldr.quantize_(adapted)


def test_rounded_layers_take_no_adapters():
    """peft merged them into a copy of the weight."""
    peft = pytest.importorskip("peft")
    model = torchldr.quantize_(llama())
    config = peft.LoraConfig(r=2, target_modules=["q_proj"])
    with pytest.raises(ValueError, match=r"adapter of peft could not be merged .*quantize_ has rounded"):
        peft.get_peft_model(model, config)
    torchldr.compress_(compressed := llama(), {"*q_proj": torchldr.Structure("low_rank", rank=4)})
    adapted = peft.get_peft_model(torchldr.quantize_(compressed), torchldr.hf.lora_config(config))
    with pytest.raises(ValueError, match="cannot be merged"):
        adapted.merge_and_unload()


def save(folder, model, **options):
    """A model in a folder, with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(48))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    )
    model.save_pretrained(folder, **options)
    fast.save_pretrained(folder)


LINES = [" ".join(f"w{(7 * i + j * j) % 48}" for j in range(9)) for i in range(70)]


def test_the_command_line_compresses_a_folder(tmp_path, capsys):
    source, out, text = tmp_path / "in", tmp_path / "out", tmp_path / "text.txt"
    save(source, bert(), max_shard_size="60KB")
    text.write_text("\n".join(LINES))
    given = [source, "--budget", ".5", "--out", out, "--text", text, "--structures", "low_rank", "--json"]
    for expected in (0, 1):  # the second finds the folder of the first
        with pytest.raises(SystemExit) as found:
            cli.main(["compress", *map(str, given)])
        assert found.value.code == expected
        captured = capsys.readouterr()
        if expected == 0:
            report = json.loads(captured.out)
    assert "exists already" in captured.err
    assert 0 < report["distance"] < 1
    assert report["parameters_after"] <= 0.5 * report["parameters_before"]
    again = transformers.AutoModel.from_pretrained(out)
    assert isinstance(again.encoder.layer[0].intermediate.dense, torchldr.StructuredLinear)
    assert sum(p.numel() for p in again.parameters()) == report["model_parameters_after"]
    assert transformers.AutoTokenizer.from_pretrained(out)("w3 w4")["input_ids"] == [5, 6]


@pytest.mark.parametrize("make", [bert, llama])
def test_a_folder_is_compressed_as_the_model_would_be(tmp_path, make):
    """Names, ties, a dtype that the config does not have, buffers that are not saved, and generation."""
    model = make()
    if make is llama:
        model.generation_config.max_length = 17
    save(tmp_path / "in", model, max_shard_size="60KB")
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    (tmp_path / "in" / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    options = {"structures": ["low_rank"]}
    report = torchldr.hf.compress_folder(tmp_path / "in", tmp_path / "out", 0.5, text=LINES, **options)
    batches = torchldr.hf.text_batches(tmp_path / "in", LINES)
    model = type(model).from_pretrained(tmp_path / "in", dtype=torch.float32)
    expected = torchldr.compress_(model, 0.5, loader=batches, **options)
    again = type(model).from_pretrained(tmp_path / "out", dtype="auto")
    assert again.dtype == torch.float32
    assert same(model, again)
    assert report.distance == expected.distance
    if make is llama:
        assert again.generation_config.max_length == 17
        assert again.lm_head.weight is again.model.embed_tokens.weight
    with pytest.raises(ValueError, match="already"):
        torchldr.hf.compress_folder(tmp_path / "out", tmp_path / "more", 0.5)
