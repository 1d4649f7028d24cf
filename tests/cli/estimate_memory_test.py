"""Compares `accelerant estimate-memory` with Accelerate, transformers, and what allocators report."""

import copy
import json
import os
import subprocess
import types

import pytest
import torch
import transformers
from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from launching import COMMAND, DEADLINE, clean_environment
from safetensors.torch import save_file

PROBE = os.environ["ACCELERANT_MEMORY_PROBE"]


def run(*arguments, code=0):
    result = subprocess.run([COMMAND, "estimate-memory", *map(str, arguments)], capture_output=True, text=True,
                            timeout=DEADLINE, env=clean_environment(), stdin=subprocess.DEVNULL)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout if code == 0 else result.stderr


def estimate(*arguments):
    return json.loads(run(*arguments, "--json"))


CONFIGS = {
    "gpt2": transformers.GPT2Config(n_embd=48, n_layer=3, n_head=4, vocab_size=101, n_positions=32),
    "gpt2-untied": transformers.GPT2Config(n_embd=48, n_layer=2, n_head=4, vocab_size=101, n_inner=100,
                                           tie_word_embeddings=False),
    "llama": transformers.LlamaConfig(hidden_size=64, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2,
                                      intermediate_size=96, vocab_size=101),
    "llama-biased": transformers.LlamaConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=8, head_dim=16,
                                             intermediate_size=96, vocab_size=101, attention_bias=True, mlp_bias=True,
                                             tie_word_embeddings=True),
    "mistral": transformers.MistralConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=8,
                                          num_key_value_heads=4, intermediate_size=96, vocab_size=101),
    "qwen2": transformers.Qwen2Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
                                      intermediate_size=96, vocab_size=101),
    "qwen3": transformers.Qwen3Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
                                      head_dim=16, intermediate_size=96, vocab_size=101),
    "bert": transformers.BertConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
                                    vocab_size=101),
    "roberta": transformers.RobertaConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                                          intermediate_size=96, vocab_size=101, max_position_embeddings=40),
}
HEADS = {"gpt2": transformers.AutoModelForCausalLM, "llama": transformers.AutoModelForCausalLM,
         "mistral": transformers.AutoModelForCausalLM, "qwen2": transformers.AutoModelForCausalLM,
         "qwen3": transformers.AutoModelForCausalLM, "bert": transformers.AutoModelForMaskedLM,
         "roberta": transformers.AutoModelForMaskedLM}


def models():
    for name, config in CONFIGS.items():
        yield pytest.param(transformers.AutoModel, config, id=name)
        yield pytest.param(HEADS[config.model_type], config, id=name + "-head")


@pytest.mark.parametrize(("kind", "config"), list(models()))
def test_parameters_follow_from_the_configuration(tmp_path, kind, config):
    """From config.json alone, from the files, and from both: as many parameters as transformers makes."""
    config = copy.deepcopy(config)
    model = kind.from_config(config)
    expected = sum(parameter.numel() for parameter in model.parameters())
    config.architectures = [type(model).__name__]
    config.save_pretrained(tmp_path / "config")
    from_config = estimate(tmp_path / "config")
    assert from_config["model"]["source"] == "config"
    assert from_config["model"]["parameters"] == expected

    model.save_pretrained(tmp_path / "both")
    from_files = estimate(tmp_path / "both")
    assert from_files["model"]["source"] == "files"
    assert from_files["model"]["parameters"] == expected
    assert from_files["model"]["largest_layer"]["elements"] == from_config["model"]["largest_layer"]["elements"]
    for amounts in ("loading", "training", "inference"):
        assert from_files[amounts] == from_config[amounts]
    # Names are those of transformers, except for what it names after the base model.
    assert from_config["model"]["largest_layer"]["names"] == from_files["model"]["largest_layer"]["names"]


@pytest.mark.parametrize("config", [pytest.param(config, id=name) for name, config in CONFIGS.items()])
def test_loading_equals_accelerate(tmp_path, config):
    with init_empty_weights():
        empty = transformers.AutoModel.from_config(config)
    total, _ = calculate_maximum_sizes(empty)
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in empty.buffers())
    model = transformers.AutoModel.from_config(copy.deepcopy(config))
    model.save_pretrained(tmp_path)
    ours = estimate(tmp_path)["loading"]
    # Accelerate counts buffers that files do not hold.
    assert ours["float32"]["total"] == total - buffers
    assert ours["float32"]["training_with_adam"] == max(estimate_training_usage(total - buffers, "float32").values())
    assert ours["float16"]["training_with_adam"] == max(estimate_training_usage(total - buffers, "float16").values())
    assert ours["int8"]["total"] * 4 == ours["float32"]["total"] and ours["int8"]["training_with_adam"] is None
    assert ours["int4"]["total"] * 8 == ours["float32"]["total"]


def test_largest_layer_equals_accelerate(tmp_path):
    for name, config in CONFIGS.items():
        with init_empty_weights():
            model = transformers.AutoModel.from_config(config)
        size, names = calculate_maximum_sizes(model)[1]
        buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.get_submodule(names[0]).buffers())
        transformers.AutoModel.from_config(copy.deepcopy(config)).save_pretrained(tmp_path / name)
        ours = estimate(tmp_path / name)
        assert ours["loading"]["float32"]["largest_layer"] == size - buffers
        assert ours["model"]["largest_layer"]["names"] == sorted(names)


def test_models_of_other_kinds(tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8),
                              torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 40)))
    total, (largest, names) = calculate_maximum_sizes(net)
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    torch.save(net.state_dict(), tmp_path / "net.bin")
    for path in (tmp_path, tmp_path / "model.safetensors", tmp_path / "net.bin"):
        found = estimate(path)
        assert found["model"]["parameters"] == sum(p.numel() for p in net.parameters())
        assert found["model"]["buffers"] == 16 and found["model"]["other_bytes"] == 8
        assert found["loading"]["float32"]["total"] == total
        assert found["loading"]["float32"]["largest_layer"] == largest
        assert found["model"]["largest_layer"]["names"] == sorted(names)
        assert found["training"]["fp32"]["activations"] is None
    assert "Activations are unknown" in run(tmp_path)

    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert "another kind of model than bert, gpt2" in run(tmp_path)


# name -> (tensors of the size of a parameter, in float32)
STATES = {"sgd": 0, "sgd-momentum": 1, "adagrad": 1, "rmsprop": 1, "lion": 1, "adam": 2, "adamw": 2, "amsgrad": 3}


def test_optimizers_and_types(tmp_path):
    CONFIGS["gpt2"].save_pretrained(tmp_path)
    count = estimate(tmp_path)["model"]["parameters"]
    for optimizer, states in STATES.items():
        found = estimate(tmp_path, "--optimizer", optimizer)["training"]
        for precision in ("fp32", "fp16", "bf16"):
            assert found[precision]["parameters"] == found[precision]["gradients"] == 4 * count
            assert found[precision]["optimizer"] == 4 * count * states
        assert found["bf16-weights"]["parameters"] == found["bf16-weights"]["gradients"] == 2 * count
        assert found["bf16-weights"]["optimizer"] == 4 * count * (states + 1)
        bare = estimate(tmp_path, "--optimizer", optimizer, "--no-master-weights")["training"]["bf16-weights"]
        assert bare["optimizer"] == 2 * count * states
        assert found["fp32"]["autocast_copies"] == 0


def test_processes_share_what_is_sharded(tmp_path):
    CONFIGS["llama"].save_pretrained(tmp_path)
    one = estimate(tmp_path)["training"]["fp32"]
    stages = [estimate(tmp_path, "--num-processes", 8, "--sharding-stage", stage)["training"]["fp32"]
              for stage in range(4)]
    assert stages[0] == {**one, "exchange": one["gradients"], "peak": one["peak"] + one["gradients"]}
    viewed = estimate(tmp_path, "--num-processes", 8, "--gradient-as-bucket-view")["training"]["fp32"]
    assert viewed == one

    def divided(amount):
        return -(-amount // 8)

    for stage, found in enumerate(stages):
        assert found["optimizer"] == (divided(one["optimizer"]) if stage >= 1 else one["optimizer"])
        assert found["gradients"] == (divided(one["gradients"]) if stage >= 2 else one["gradients"])
        assert found["parameters"] == (divided(one["parameters"]) if stage >= 3 else one["parameters"])
        assert found["activations"] == one["activations"]


def test_offload(tmp_path):
    CONFIGS["gpt2"].save_pretrained(tmp_path)
    plain = estimate(tmp_path)["training"]["fp32"]
    optimizer = estimate(tmp_path, "--offload", "optimizer")["training"]["fp32"]
    assert optimizer["optimizer"] == 0 and optimizer["host"] >= plain["optimizer"]
    assert 0 < optimizer["gradients"] < plain["gradients"]
    assert optimizer["peak"] <= plain["peak"] - plain["optimizer"]
    # Gradients that add up, or that are exchanged, stay.
    accumulated = ["--gradient-accumulation-steps", 2]
    stays = estimate(tmp_path, "--offload", "optimizer", *accumulated)["training"]["fp32"]
    assert stays["gradients"] == plain["gradients"]
    assert stays["peak"] == estimate(tmp_path, *accumulated)["training"]["fp32"]["peak"] - plain["optimizer"]
    several = estimate(tmp_path, "--offload", "optimizer", "--num-processes", 2)["training"]["fp32"]
    assert several["gradients"] == plain["gradients"]
    both = estimate(tmp_path, "--offload", "optimizer,parameters")["training"]["fp32"]
    assert both["parameters"] < plain["parameters"] and both["host"] == optimizer["host"] + plain["parameters"]
    small = estimate(tmp_path, "--offload", "parameters", "--offload-budget", "64KiB")["training"]["fp32"]
    assert small["parameters"] == 65536 and small["host"] == plain["parameters"]
    ample = estimate(tmp_path, "--offload", "parameters", "--offload-budget", "1TB")["training"]["fp32"]
    assert ample["parameters"] == plain["parameters"]
    checkpointed = estimate(tmp_path, "--activation-checkpointing")["training"]["fp32"]
    assert checkpointed["activations"] < plain["activations"]
    away = estimate(tmp_path, "--activation-checkpointing", "--offload", "activations")["training"]["fp32"]
    assert away["activations"] + away["host"] == checkpointed["activations"] and away["host"] > 0


def test_accumulated_gradients_live_through_forward(tmp_path):
    CONFIGS["gpt2"].save_pretrained(tmp_path)
    once = estimate(tmp_path, "--batch-size", 64)["training"]["fp32"]
    twice = estimate(tmp_path, "--batch-size", 64, "--gradient-accumulation-steps", 2)["training"]["fp32"]
    assert twice["peak"] == once["peak"] + once["gradients"]


def test_mistakes(tmp_path):
    assert "does not exist" in run(tmp_path / "none", code=2)
    assert "download" in run("bert-base-cased", code=2)
    CONFIGS["gpt2"].save_pretrained(tmp_path)
    assert "never executed" in run(tmp_path, "--trust_remote_code", code=2)
    assert "--activation-checkpointing" in run(tmp_path, "--offload", "activations", code=2)
    assert "--num-processes" in run(tmp_path, "--sharding-stage", 2, code=2)
    assert "--offload parameters" in run(tmp_path, "--offload-budget", "4GiB", code=2)
    assert "such as 4GiB" in run(tmp_path, "--offload", "parameters", "--offload-budget", "lots", code=2)
    assert "from 1 to" in run(tmp_path, "--batch-size", 0, code=2)
    assert "adamw" in run(tmp_path, "--optimizer", "adamx", code=2)
    assert "expected words of" in run(tmp_path, "--precision", "fp32,fp8", code=2)
    assert "more memory than any machine" in run(tmp_path, "--batch-size", 2**31, "--sequence-length", 2**31, code=2)
    config = tmp_path / "config.json"
    for text, problem in (("[", "is damaged"), ("[]", "JSON object"), ('{"model_type": "gpt2"}', "n_layer"),
                          ('{"model_type": "llama", "num_hidden_layers": -1}', "num_hidden_layers"),
                          ('{"model_type": "llama", "num_hidden_layers": 1e300}', "num_hidden_layers"),
                          ('{"model_type": "vit"}', "another kind")):
        config.write_text(text)
        assert problem in run(config, code=1)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    config.unlink()
    assert run(tmp_path, code=1)


def test_help_and_text(tmp_path):
    CONFIGS["llama"].save_pretrained(tmp_path)
    text = run(tmp_path, "--num-processes", 4, "--sharding-stage", 3, "--activation-checkpointing")
    assert "llama, 3 layers" in text and "one of 4 processes, sharding stage 3" in text
    for row in ("parameters", "gradients", "optimizer", "16-bit copies of weights", "activations", "loss", "peak"):
        assert f"\n  {row} " in text
    only = run(tmp_path, "--precision", "bf16", "--dtypes", "float16")
    assert "fp32" not in only and "int8" not in only
    assert "--sequence-length N" in run("--help")


# Large enough that what libraries of a GPU keep for themselves does not matter.
SIZES = {"cpu": {"batch": 4, "length": 256, "layers": 6, "width": 256, "vocabulary": 512},
         "cuda": {"batch": 8, "length": 512, "layers": 8, "width": 512, "vocabulary": 8192}}


def measured(tmp_path, device, family, precision, batch, length, layers, width, vocabulary, checkpointing=False,
             offload=None):
    words = [PROBE, family, tmp_path, device, precision, batch, length, layers, width, vocabulary, int(checkpointing)]
    words += [offload] if offload else []
    # Attention on a CPU has memory for each thread, which a small model would not hide.
    result = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=4 * DEADLINE,
                            env=clean_environment(OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="2"), stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    found = types.SimpleNamespace(**json.loads(result.stdout))
    options = ["--activation-checkpointing"] if checkpointing else []
    options += ["--offload", offload] if offload else []
    expected = estimate(tmp_path, "--batch-size", batch, "--sequence-length", length, *options)
    return found, expected["training"][precision], expected["inference"][precision]


def extra_of_norm(family, device, batch, length, width, **_):
    """On the CPU, libtorch composes rms_norm from several operators, which keep two float32 tensors more."""
    return 2 * 4 * width * batch * length if family == "llama" and device == "cpu" else 0


def close(measured_bytes, expected, tolerance):
    print(f"measured {measured_bytes / 2**20:.1f} MiB, expected {expected / 2**20:.1f} MiB "
          f"({expected / measured_bytes:.3f})", end="; ")
    return abs(expected - measured_bytes) <= tolerance * measured_bytes


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-weights"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_estimates_match_what_is_allocated(tmp_path, family, precision, device):
    found, expected, inference = measured(tmp_path, device, family, precision, **SIZES[device])
    assert close(found.parameters, expected["parameters"], 0.02)
    assert close(found.gradients, expected["gradients"], 0.02)
    assert close(found.optimizer, expected["optimizer"], 0.05)
    extra_of_one = extra_of_norm(family, device, **SIZES[device])
    extra = extra_of_one * (2 * SIZES[device]["layers"] + 1)
    assert close(found.saved, expected["activations"] + expected["autocast_copies"] + expected["loss"] / 3 + extra, 0.1)
    assert close(found.peak, expected["peak"] + extra, 0.1)
    assert close(found.inference, inference["peak"] + extra_of_one, 0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_estimates_match_with_activation_checkpointing(tmp_path, precision, device):
    found, expected, _ = measured(tmp_path, device, "gpt2", precision, checkpointing=True, **SIZES[device])
    # Copies of weights are dropped with what is computed again, except that of the head.
    copies = 2 * SIZES[device]["vocabulary"] * SIZES[device]["width"] if precision == "bf16" else 0
    assert close(found.saved, expected["activations"] + copies + expected["loss"] / 3, 0.1)
    assert close(found.peak, expected["peak"], 0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on a CPU, host and device have the same memory")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-weights"])
@pytest.mark.parametrize(("offload", "checkpointing"), [("optimizer", False), ("optimizer,activations", True),
                                                        ("optimizer,parameters", False)])
def test_estimates_match_with_offload(tmp_path, precision, offload, checkpointing):
    sizes = {"batch": 4, "length": 512, "layers": 16, "width": 1024, "vocabulary": 8192}
    found, expected, _ = measured(tmp_path, "cuda", "gpt2", precision, checkpointing=checkpointing, offload=offload,
                                  **sizes)
    assert close(found.peak, expected["peak"], 0.1)


@pytest.mark.parametrize("device", DEVICES)
def test_a_large_vocabulary_dominates(tmp_path, device):
    found, expected, _ = measured(tmp_path, device, "gpt2", "fp32", batch=2, length=128, layers=2, width=64,
                              vocabulary=20000)
    assert close(found.peak, expected["peak"], 0.1)


@pytest.mark.parametrize("device", DEVICES)
def test_a_small_batch_peaks_at_the_end_of_backward(tmp_path, device):
    found, expected, _ = measured(tmp_path, device, "gpt2", "fp32", batch=1, length=16, layers=4, width=256,
                              vocabulary=512)
    assert close(found.peak, expected["peak"], 0.1)
