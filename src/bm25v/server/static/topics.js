// What many images of the gallery show: each is a search.
import { getJson, loadImage, thumbnail } from "./api.js";
import { h, thousands } from "./dom.js";
import { newSearch } from "./state.js";

let topics = null; // of the gallery, once they are known

/** Fill a list, at once if the topics are known; it is hidden if there are none. */
export async function fillTopics(list) {
  if (!topics) ({ topics } = await getJson("/v1/topics").catch(() => ({ topics: null })));
  list.hidden = !topics?.length;
  list.replaceChildren(...(topics ?? []).map(makeLink));
}

const makeLink = ({ name, n_images, id }) =>
  h(
    "li",
    h(
      "a.topic",
      { href: newSearch({ text: name }) },
      loadImage(h("img", { alt: "", width: 64, height: 64 }), thumbnail(id, 128)),
      h("span", name, " ", h("small", thousands(n_images))),
    ),
  );
