"""Transforms that are fitted before the table is parted, read from the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradledger.audit._fits import fitted_before_split, fitted_on_both

HEAD = "from sklearn.preprocessing import StandardScaler, LabelEncoder\nfrom sklearn.decomposition import PCA\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = StandardScaler().fit_transform(x)\na, b = train_test_split(x, test_size=0.2)", (3, 4)),
        ("s = StandardScaler()\nx = s.fit_transform(x)\nx_train, x_test = x[:80], x[80:]", (4, 5)),
        ("s = StandardScaler()\nx = s.fit_transform(x)\nx_train = x[:80]\nx_val = x[80:]", (4, 6)),
        ("p = PCA(3)\np.fit(x)\nz = torch.tensor(p.transform(x))\nd = DataLoader(Subset(z, train_idx))", (4, 6)),
        ("p = PCA(3)\nz = p.fit_transform(x)\nnet(z[train_idx])\nscore(z[test_idx])", (4, 6)),
        ("def load(x):\n    s = PCA(3)\n    x = s.fit_transform(x)\n    return random_split(Rows(x), [8, 2])", (5, 6)),
    ],
)
def test_fitted_on_all(text: str, lines: tuple[int, int], tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"{HEAD}{text}\n", encoding="utf-8")
    (found,) = fitted_before_split(str(file))
    assert (found.site.line, found.split.line) == lines


@pytest.mark.parametrize(
    "text",
    [
        "x_train, x_test = train_test_split(x)\ns = PCA(3)\na = s.fit_transform(x_train)\nb = s.transform(x_test)",
        "train, test = x[:80], x[80:]\ns = StandardScaler().fit(train)\na, b = s.transform(train), s.transform(test)",
        "y = StandardScaler().fit_transform(y)\na, b = train_test_split(y)",
        "c = LabelEncoder().fit_transform(names)\na, b = train_test_split(c)",
        "x = StandardScaler().fit_transform(x)\nnet(x[:4])\nnet(x[order])",
        "x = StandardScaler().fit_transform(x)\na, b = train_test_split(other)",
    ],
)
def test_fitted_on_training_rows_or_never_parted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"{HEAD}{text}\n", encoding="utf-8")
    assert list(fitted_before_split(str(file))) == []


OWN = (
    "class Scale:\n    def fit(self, x):\n        self.m = x.mean(0)\n"
    "class Words:\n    def fit(self, x):\n        self.w = set(x)\n"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("s = StandardScaler().fit(np.vstack([x_train, x_test]))", 3),
        ("s = PCA(3)\nboth = np.concatenate((train, held_out))\ns.fit(both)", 5),
        (OWN + "s = Scale()\ns.fit(torch.cat([a, b]))\nx_valid = s(b)", 10),
        (OWN + "class Lab:\n    def __init__(self, a, b):\n        self.s = Scale().fit(np.vstack([a, b]))\n"
         "        self.x, self.test_x = self.s(a), self.s(b)", 11),
    ],
)  # fmt: skip
def test_fitted_on_both_sides(text: str, line: int, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"{HEAD}{text}\n", encoding="utf-8")
    (found,) = fitted_on_both(str(file))
    assert found.site.line == line


@pytest.mark.parametrize(
    "text",
    [
        "s = StandardScaler().fit(np.vstack([left_train, right_train]))\nx_test = s.transform(test)",
        "s = StandardScaler().fit(np.vstack([x_train, x_val]))\nz = s.transform(x_test)",
        "c = LabelEncoder().fit(np.concatenate([y_train, y_test]))",
        OWN + "w = Words()\nw.fit(np.concatenate([train, test]))",
        OWN + "s = Scale().fit(np.vstack([a, b]))\nx_train, x_test = s(a), s(c)",
        "model.fit(np.vstack([x_train, x_test]))",
        "s = StandardScaler().fit(np.hstack([x_train, x_test]))",
    ],
)
def test_fitted_on_parts_of_training_or_to_labels(text: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"{HEAD}{text}\n", encoding="utf-8")
    assert list(fitted_on_both(str(file))) == []
