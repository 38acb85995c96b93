// The photos of an explanation: bright and outlined where they match, dark elsewhere.
import { getJson, imageAddress, thumbnail } from "./api.js";
import { fileName, h, label } from "./dom.js";
import { NOWHERE, gridMasks } from "./masks.js";
import { hasImages } from "./state.js";
import { findUpload, uploadAddress } from "./uploads.js";

/** Return a side for each image of the query: its figure, and how to show where a group is. */
export async function querySides(state, explanation) {
  if (!hasImages(state)) {
    const about = state.text
      ? `The query is a text: “${state.text}”.`
      : state.like.length
        ? "The query is what you marked as good."
        : "The query has no image, only words.";
    return [{ figure: h("div.empty", h("p", about)) }];
  }
  const uploads = state.upload.map(findUpload).filter(Boolean);
  const sources = [
    ...uploads.map(async (file) => [uploadAddress(file), file.name]),
    ...state.image.map((id) =>
      Promise.all([
        imageAddress(thumbnail(id, 1024)).catch(() => null),
        getJson(`/v1/images/${id}`).then(({ path }) => path),
      ]),
    ),
  ];
  return Promise.all(
    sources.map(async (source, n) => {
      const [address, name] = await source;
      const gridOf = (part) => part.in_queries?.[n];
      return photoSide("Query", address, name, gridOf, explanation, n ? null : state.region);
    }),
  );
}

/** Return the hit's side. */
export async function hitSide(explanation) {
  const address = await imageAddress(thumbnail(explanation.id, 1024)).catch(() => null);
  return photoSide("Hit", address, explanation.path, (part) => part.in_hit, explanation);
}

/** Return a photo in layers: dark, bright where a mask is, and an outline. */
export function makeMap(address, attributes = {}) {
  const layer = (kind) =>
    h("i", {
      class: `photo ${kind}`,
      style: { "background-image": `url(${JSON.stringify(address)})` },
    });
  return h(
    "div.map",
    { role: "img", ...attributes },
    layer("veiled"),
    layer("matched"),
    h("i.photo.edge"),
  );
}

async function photoSide(role, address, name, gridOf, explanation, region) {
  const img = Object.assign(new Image(), { src: address ?? "" });
  try {
    await img.decode();
  } catch {
    const about = `${fileName(name) || role}: the image cannot be shown.`;
    return { figure: h("div.empty", h("p", about)) };
  }
  const map = makeMap(address);
  if (region) {
    const [left, top, width, height] = region.map((share) => `${100 * share}%`);
    map.append(h("i.region", { style: { left, top, width, height } }));
  }
  const known = new Map();
  let last = null;
  const show = async (group) => {
    last = group;
    const grid = gridOf(group ?? explanation);
    if (!known.has(group))
      known.set(
        group,
        grid ? await gridMasks(grid, group ? 1 : explanation.visibility) : [NOWHERE, NOWHERE],
      );
    if (last !== group) return; // somebody points at another one by now
    const [mask, edge] = known.get(group);
    map.style.setProperty("--mask", mask);
    map.style.setProperty("--edge", edge);
    const what = group ? `Where ${label(group)} is` : "What matched";
    map.setAttribute("aria-label", `${what} in the ${role.toLowerCase()}`);
  };
  await show(null);
  const figure = h(
    "figure",
    { style: { "--shape": (img.naturalWidth / img.naturalHeight).toFixed(4) } },
    map,
    h("figcaption", h("small", role), h("span.file", { title: name }, h("b", fileName(name)))),
  );
  return { figure, show };
}
