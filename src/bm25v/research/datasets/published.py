"""The layouts of published data sets with classes, as their authors distribute them.

If a data set also has a validation part, the gallery is the train part alone, as in the paper.
"""

from bm25v.research.datasets.dataset import Item
from bm25v.research.datasets.layout import DatasetFolder, DatasetLayout, DatasetParts

_CARS_TEST = "cars_test_annos_withlabels.mat"  # published apart from the devkit


def _read_birds(folder: DatasetFolder) -> DatasetParts:
    names, parts = folder.read_mapping("classes.txt"), folder.read_mapping("train_test_split.txt")
    labels = folder.read_mapping("image_class_labels.txt")
    items: dict[str, list[Item]] = {"1": [], "0": []}
    for number, path in folder.read_mapping("images.txt").items():
        part = folder.look_up(parts, number, "train_test_split.txt")
        label = folder.look_up(labels, number, "image_class_labels.txt")
        if part not in items:
            folder.fail(f"train_test_split.txt has {part!r} for image {number}, not 0 or 1")
        name = folder.look_up(names, label, "classes.txt")
        items[part].append(Item(folder.root / "images" / path, name))
    return DatasetParts("gallery: train, queries: test", items["1"], items["0"])


def _read_cars(folder: DatasetFolder) -> DatasetParts:
    meta = "devkit/cars_meta.mat"
    names = dict(enumerate(folder.read_matlab(meta, "class_names").tolist(), start=1))

    def items(file: str, images: str) -> list[Item]:
        annotations = folder.read_matlab(file, "annotations")
        if not {"fname", "class"} <= set(annotations.dtype.names or ()):
            folder.fail(f"{file} has no classes")
        return [
            Item(
                folder.root / images / str(annotation["fname"]),
                str(folder.look_up(names, int(annotation["class"]), meta)),
            )
            for annotation in annotations
        ]

    in_devkit = (folder.root / "devkit" / _CARS_TEST).is_file()
    return DatasetParts(
        "gallery: train, queries: test",
        items("devkit/cars_train_annos.mat", "cars_train"),
        items(f"devkit/{_CARS_TEST}" if in_devkit else _CARS_TEST, "cars_test"),
    )


def _read_aircraft(folder: DatasetFolder) -> DatasetParts:
    def items(part: str) -> list[Item]:
        variants = folder.read_mapping(f"data/images_variant_{part}.txt")
        images = folder.root / "data" / "images"
        return [Item(images / f"{name}.jpg", variant) for name, variant in variants.items()]

    return DatasetParts("gallery: train (val unused), queries: test", items("train"), items("test"))


def _read_pets(folder: DatasetFolder) -> DatasetParts:
    def items(part: str) -> list[Item]:
        names = [row[0] for row in folder.read_table(f"annotations/{part}.txt", 4)]
        images = folder.root / "images"
        return [Item(images / f"{name}.jpg", name.rpartition("_")[0]) for name in names]

    return DatasetParts("gallery: trainval, queries: test", items("trainval"), items("test"))


def _read_flowers(folder: DatasetFolder) -> DatasetParts:
    file = "imagelabels.mat"
    labels = dict(enumerate(map(int, folder.read_matlab(file, "labels")), start=1))

    def items(variable: str) -> list[Item]:
        numbers = map(int, folder.read_matlab("setid.mat", variable))
        images = folder.root / "jpg"
        return [
            Item(images / f"image_{number:05d}.jpg", str(folder.look_up(labels, number, file)))
            for number in numbers
        ]

    return DatasetParts(
        "gallery: train (val unused), queries: test", items("trnid"), items("tstid")
    )


def _read_textures(folder: DatasetFolder) -> DatasetParts:
    def items(part: str) -> list[Item]:
        paths = folder.read_lines(f"labels/{part}.txt")
        return [Item(folder.root / "images" / path, path.partition("/")[0]) for path in paths]

    # The paper's 1,002 operations per query are 5 · 16² · N / V with V at most 3,240, so N is at
    # most 2,536: train1 has 1,880 images, with val1 it would be 3,760.
    return DatasetParts(
        "gallery: train1 (val1 unused), queries: test1", items("train1"), items("test1")
    )


def _read_food(folder: DatasetFolder) -> DatasetParts:
    def items(part: str) -> list[Item]:
        images = folder.root / "images"
        paths = folder.read_lines(f"meta/{part}.txt")
        return [Item(images / f"{path}.jpg", path.partition("/")[0]) for path in paths]

    return DatasetParts("gallery: train, queries: test", items("train"), items("test"))


PUBLISHED = {
    "cub200": DatasetLayout(
        title="CUB-200-2011",
        folder="CUB_200_2011",
        files="images.txt, train_test_split.txt, image_class_labels.txt, classes.txt and images/",
        homepage="the Caltech vision group's page of CUB-200-2011 (vision.caltech.edu)",
        read=_read_birds,
    ),
    "cars196": DatasetLayout(
        title="Stanford Cars-196",
        folder="stanford_cars",
        files="cars_train/, cars_test/, devkit/cars_train_annos.mat, devkit/cars_meta.mat and "
        f"{_CARS_TEST}",
        homepage="Jonathan Krause's page of the Cars dataset (ai.stanford.edu/~jkrause/cars)",
        read=_read_cars,
    ),
    "aircraft": DatasetLayout(
        title="FGVC-Aircraft",
        folder="fgvc-aircraft-2013b",
        files="data/images_variant_train.txt, data/images_variant_test.txt and data/images/",
        homepage="the Oxford VGG page of FGVC-Aircraft (robots.ox.ac.uk/~vgg/data/fgvc-aircraft)",
        read=_read_aircraft,
    ),
    "pets": DatasetLayout(
        title="Oxford-IIIT Pets",
        folder="oxford-iiit-pet",
        files="annotations/trainval.txt, annotations/test.txt and images/",
        homepage="the Oxford VGG page of the pet dataset (robots.ox.ac.uk/~vgg/data/pets)",
        read=_read_pets,
    ),
    "flowers102": DatasetLayout(
        title="Oxford Flowers-102",
        folder="flowers-102",
        files="imagelabels.mat, setid.mat and jpg/image_00001.jpg …",
        homepage="the Oxford VGG page of the 102 flowers (robots.ox.ac.uk/~vgg/data/flowers/102)",
        read=_read_flowers,
    ),
    "dtd": DatasetLayout(
        title="DTD",
        folder="dtd",
        files="labels/train1.txt, labels/test1.txt and images/<texture>/",
        homepage="the Oxford VGG page of describable textures (robots.ox.ac.uk/~vgg/data/dtd)",
        read=_read_textures,
    ),
    "food101": DatasetLayout(
        title="Food-101",
        folder="food-101",
        files="meta/train.txt, meta/test.txt and images/<dish>/",
        homepage="the ETH computer vision lab's page of Food-101 (data.vision.ee.ethz.ch)",
        read=_read_food,
    ),
}
