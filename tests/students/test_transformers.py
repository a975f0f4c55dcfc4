"""Classifiers of ``transformers``, built from small configurations: from the teacher to a saved student."""

import copy
import logging

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

import opu
from opu.batches import scores
from opu.students import Student, from_teacher
from opu.teachers import MCDropout

WORDS, CLASSES = 40, 3
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": 40, "num_labels": CLASSES, "pad_token_id": 0}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
# Name in transformers, its configuration, and the layer whose outputs are the class scores.
ENCODERS = {
    "Bert": (SIZES | TEXT, "net.classifier"),
    "DistilBert": (TEXT | {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}, "net.classifier"),
    "Roberta": (SIZES | TEXT, "net.classifier.out_proj"),
    "Electra": (SIZES | TEXT | {"embedding_size": 16}, "net.classifier.out_proj"),
    "GPT2": (
        {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, "vocab_size": WORDS, "num_labels": CLASSES}
        | {"pad_token_id": 0, **TOKENS},
        "net.score",
    ),
}
ROTARY = {  # whose position codes are computed in regions without gradients and autocast
    "ModernBert": (
        SIZES | TEXT | TOKENS | {"cls_token_id": 1, "sep_token_id": 2, "mlp_dropout": 0.1},
        "net.classifier",
    ),
    "Llama": (SIZES | TEXT | TOKENS | {"attention_dropout": 0.1}, "net.score"),
    "Qwen2": (SIZES | TEXT | TOKENS | {"attention_dropout": 0.1, "num_key_value_heads": 1}, "net.score"),
    "Gemma": (SIZES | TEXT | TOKENS | {"attention_dropout": 0.1, "num_key_value_heads": 1, "head_dim": 8}, "net.score"),
}
IMAGES = {
    "ViT": (SIZES | {"image_size": 16, "patch_size": 8, "num_labels": CLASSES, "hidden_dropout_prob": 0.1}),
    "ConvNext": ({"hidden_sizes": [8, 8], "depths": [1, 1], "num_stages": 2, "num_labels": CLASSES}),
}
RECIPE = opu.Recipe(epochs=1, num_particles=4, batch_size=8)


def classifier(name: str) -> nn.Module:
    settings = IMAGES[name] if name in IMAGES else (ENCODERS | ROTARY)[name][0]
    task = "ImageClassification" if name in IMAGES else "SequenceClassification"
    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}For{task}")(config).eval()


def sentences(rows: int = 5, length: int = 9) -> dict[str, torch.Tensor]:
    """Random tokens, every other sentence shorter than the batch."""
    ids, mask = torch.randint(3, WORDS, (rows, length)), torch.ones(rows, length, dtype=torch.int64)
    mask[1::2, length // 2 :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def pictures(rows: int = 5) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(rows, 3, 16, 16)}


@torch.no_grad()
def same(a: Student, b: Student, x: dict[str, torch.Tensor]) -> None:
    """The same predictions; where a tensor lies in memory may decide the last bit of a product of matrices."""
    p, q = a(x), b(x)
    torch.testing.assert_close(p.mean, q.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(p.log_precision, q.log_precision, rtol=1e-6, atol=1e-6)


def comes_back(student: Student, net: nn.Module, folder, batches: list[dict[str, torch.Tensor]]) -> None:
    """From the file alone and on a network of the class: the same weights, and predictions for batches of every size."""
    student.save(folder)
    weights = student.state_dict()
    for again in (opu.load(folder), opu.load(folder, backbone=copy.deepcopy(net))):
        assert again.architecture == student.architecture
        assert all(torch.equal(w, weights[name]) for name, w in again.state_dict().items() if name in weights)
        for batch in batches:
            same(again, student, batch)


def starts_as_the_network(student: Student, net: nn.Module, x: dict[str, torch.Tensor]) -> None:
    """Without dropout, the mean is the network's own prediction; known before any training."""
    with torch.no_grad():
        torch.testing.assert_close(student(x).mean, net.eval()(**x).logits.softmax(-1))
        features = opu.batches.call(student.precision_net[0], x)
        torch.testing.assert_close(head(student)(features), net(**x).logits)
    assert student.precision_net[1].in_features == features.shape[1]


def head(student: Student) -> nn.Module:
    return student.mean_net.get_submodule(student.architecture["head"])


@pytest.mark.parametrize("name", ENCODERS)
def test_a_text_classifier_becomes_a_student_that_is_saved_and_loaded(name, tmp_path):
    net, x = classifier(name), sentences()
    student = from_teacher(MCDropout(net), example=x).eval()
    assert student.architecture["head"] == ENCODERS[name][1]
    starts_as_the_network(student, net, x)
    comes_back(student, net, tmp_path, [x, sentences(1), sentences(4, 6), sentences(3, 17)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ROTARY)
def test_rotary_position_codes_are_part_of_the_graph(name, tmp_path):
    net, x = classifier(name), sentences()
    student = from_teacher(MCDropout(net), example=x, shared_trunk=True).eval()
    assert student.architecture["head"] == ROTARY[name][1]
    with torch.no_grad():
        torch.testing.assert_close(student(x).mean, net(**x).logits.softmax(-1))
    comes_back(student, net, tmp_path, [x, sentences(1), sentences(4, 6), sentences(3, 17)])


@pytest.mark.parametrize("name", ["ViT", pytest.param("ConvNext", marks=pytest.mark.slow)])
def test_an_image_classifier_becomes_a_student_that_is_saved_and_loaded(name, tmp_path):
    net, x = classifier(name), pictures()
    student = from_teacher(net, example=x).eval()
    assert student.architecture["head"] == "net.classifier"
    starts_as_the_network(student, net, x)
    comes_back(student, net, tmp_path, [x, pictures(1), pictures(3)])
    images = x["pixel_values"]  # a tensor is the network's first argument
    from_tensor = from_teacher(net, example=images).eval()
    assert torch.equal(from_tensor(images).mean, student(x).mean)
    comes_back(from_tensor, net, tmp_path / "tensor", [images, images[:1]])


@pytest.mark.parametrize("name", ["Bert", "GPT2", "ConvNext"])
def test_a_shared_trunk_has_half_the_weights_and_the_same_mean(name, tmp_path):
    net, x = classifier(name), pictures() if name in IMAGES else sentences()
    student = from_teacher(net, example=x, shared_trunk=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(student(x).mean, net(**x).logits.softmax(-1))
    weights = sum(w.numel() for w in student.parameters())
    assert weights == sum(w.numel() for w in net.parameters()) + student.precision_net.in_features + 1
    comes_back(student, net, tmp_path, [x])


# --- MC dropout ------------------------------------------------------------------------------------------------------


ATTENTION_ONLY = {
    "Bert": {"attention_probs_dropout_prob": 0.4, "hidden_dropout_prob": 0.0},
    "DistilBert": {"attention_dropout": 0.4, "dropout": 0.0, "seq_classif_dropout": 0.0},
    "Llama": {"attention_dropout": 0.4},
}


@pytest.mark.parametrize("name", ATTENTION_ONLY)
def test_attention_weights_are_dropped_inside_a_fused_kernel(name):
    settings = (ENCODERS | ROTARY)[name][0] | ATTENTION_ONLY[name]
    config = getattr(transformers, f"{name}Config")(**settings)
    net, x = getattr(transformers, f"{name}ForSequenceClassification")(config).eval(), sentences(5, 20)
    before = [layer.training for layer in net.modules()]
    particles = MCDropout(net)(x, 4)
    assert [layer.training for layer in net.modules()] == before
    assert bool((particles[1:] != particles[:1]).any(-1).all())
    with torch.no_grad():
        assert torch.equal(scores(net, x), scores(net, x))


def test_particles_average_to_about_the_network_and_modes_are_left_alone():
    config = transformers.BertConfig(**SIZES, **TEXT, hidden_dropout_prob=0.02, attention_probs_dropout_prob=0.02)
    net, x = transformers.BertForSequenceClassification(config), sentences()
    net.train()
    particles = MCDropout(net)(x, 200)
    assert all(layer.training for layer in net.modules())
    expected = net.eval()(**x).logits.softmax(-1)
    torch.testing.assert_close(particles.exp().mean(0), expected, atol=0.02, rtol=0)


def test_the_student_drops_nothing():
    student = from_teacher(MCDropout(classifier("Bert")), example=sentences())
    student.fresh_start(MCDropout(classifier("Bert")), opu.Recipe())
    student.distill_mode()
    x = sentences()
    assert torch.equal(student(x).mean, student(x).mean)


# --- batches as loaders give them ------------------------------------------------------------------------------------


def padded(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest sentence, as tokenisers make them."""
    parts = {key: nn.utils.rnn.pad_sequence([item[key] for item in items], batch_first=True) for key in KEYS}
    return {**parts, "labels": torch.stack([item["labels"] for item in items])}


KEYS = ("input_ids", "token_type_ids", "attention_mask")


def dataset(rows: int = 40) -> list[dict[str, torch.Tensor]]:
    items = []
    for number in range(rows):
        ids = torch.randint(3, WORDS, (4 + number % 9,))
        kinds = (torch.arange(len(ids)) > 3).long()
        values = (ids, kinds, torch.ones_like(ids))
        items.append({**dict(zip(KEYS, values, strict=True)), "labels": torch.tensor(number % CLASSES)})
    return items


def test_a_loader_with_padding_to_each_batchs_longest_is_distilled(tmp_path):
    net = classifier("Bert")
    loader = DataLoader(dataset(), batch_size=8, collate_fn=padded, shuffle=True)
    batch = next(iter(loader))
    teacher = MCDropout(net)
    student = from_teacher(teacher, example=batch)
    assert student.inputs["dict"].keys() == set(KEYS)  # labels are no inputs
    before = {name: w.clone() for name, w in student.state_dict().items()}
    weights = copy.deepcopy(net.state_dict())
    lengths = set()
    net.bert.embeddings.word_embeddings.register_forward_pre_hook(lambda _layer, args: lengths.add(args[0].shape[1]))
    transform = opu.augment.tokens.masked(3, keep=(0,))
    result = opu.distill(
        teacher,
        student,
        loader,
        recipe=opu.Recipe(epochs=2, num_particles=4, augment=transform),
        held_out=0.5,
        out=tmp_path / "run",
        progress=False,
    )
    assert len(lengths) > 1
    assert result.best_epoch >= 1
    assert any(not torch.equal(w, before[name]) for name, w in student.named_parameters())
    assert all(torch.equal(w, weights[name]) for name, w in net.state_dict().items())
    kinds = {**batch, "token_type_ids": 1 - batch["token_type_ids"]}
    assert not torch.equal(student(features(batch)).mean, student(features(kinds)).mean)  # they are read
    again = opu.load(tmp_path / "run")
    prediction, other = student.predict(loader_in_order()), again.predict(loader_in_order())
    assert prediction.probabilities.shape == (40, CLASSES)
    assert (prediction.probabilities == other.probabilities).all()
    np.testing.assert_array_equal(prediction.novelty_p_value, other.novelty_p_value)
    assert prediction.novelty_p_value.shape == (40,)


def features(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: batch[key] for key in KEYS}


def loader_in_order() -> DataLoader:
    torch.manual_seed(1)
    return DataLoader(dataset(), batch_size=8, collate_fn=padded)


def test_an_encoding_of_a_tokeniser_is_a_batch_like_any_dict():
    x = sentences()
    encoding = transformers.BatchEncoding({**x, "labels": torch.zeros(5, dtype=torch.int64)})
    student = from_teacher(classifier("Bert"), example=encoding).eval()
    assert torch.equal(student(x).mean, student(encoding_without_labels(encoding)).mean)
    assert (student.predict(encoding).probabilities == student.predict(x).probabilities).all()


def encoding_without_labels(encoding):
    return transformers.BatchEncoding({key: value for key, value in encoding.items() if key != "labels"})


def test_padding_changes_nothing():
    student = from_teacher(classifier("Bert"), example=sentences()).eval()
    x = sentences(4, 8)
    longer = {key: nn.functional.pad(value, (0, 5)) for key, value in x.items()}
    torch.testing.assert_close(student(longer).mean, student(x).mean)


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_a_missing_and_an_unknown_part_are_named(tmp_path):
    x = sentences()
    student = from_teacher(classifier("Bert"), example=x).eval()
    student.save(tmp_path)
    again = opu.load(tmp_path)
    with pytest.raises(
        ValueError, match="the parts input_ids, attention_mask; attention_mask is missing, and input_ids"
    ):
        again.predict({"input_ids": x["input_ids"]})
    with pytest.raises(ValueError, match="takes attention_mask, input_ids, but the inputs hold 'pixels'"):
        again.predict({**x, "pixels": torch.randn(5, 4)})
    labelled = {**x, "labels": torch.zeros(5, dtype=torch.int64), "row": torch.arange(5)}
    assert (again.predict(labelled).probabilities == again.predict(x).probabilities).all()


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.randn(2, 4), r"the network cannot read inputs of shape \(2, 4\)"),
        ({"words": torch.ones(2, 4, dtype=torch.int64)}, r"the network cannot read inputs of parts words \(2, 4\)"),
        ({"input_ids": torch.ones(2, 99, dtype=torch.int64)}, r"the network cannot read inputs of parts input_ids"),
    ],
)
def test_a_wrong_example_is_refused_in_one_line(example, message):
    with pytest.raises(ValueError, match=message) as refused:
        from_teacher(classifier("Bert"), example=example)
    assert "\n" not in str(refused.value)
    assert "Give an example as the teacher takes its inputs" in str(refused.value)


def test_a_model_without_class_scores_is_refused():
    config = transformers.BertConfig(**SIZES, **TEXT)
    with pytest.raises(ValueError, match=r"or an object with such \.logits; BertModel returns a BaseModelOutput"):
        from_teacher(transformers.BertModel(config), example=sentences())


def test_a_network_that_cannot_be_written_says_how_to_load_it(tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    config = transformers.BartConfig(
        **TEXT, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, **TOKENS
    )  # fmt: skip
    net, x = transformers.BartForSequenceClassification(config).eval(), sentences()
    x["input_ids"][:, -1] = 2  # it reads the features at the last of these tokens, and checks that there are some
    x["attention_mask"][:] = 1
    student = from_teacher(net, example=x, shared_trunk=True).eval()
    with pytest.warns(
        UserWarning, match=r"cannot be written as a graph, since .*<eos>.*opu\.load\(folder, backbone=net\)"
    ):
        student.save(tmp_path)
    same(opu.load(tmp_path, backbone=net), student, x)
    with pytest.raises(ValueError, match=r"give its class: opu\.load\(folder, backbone=net\)"):
        opu.load(tmp_path)
