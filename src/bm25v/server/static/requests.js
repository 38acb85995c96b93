// What the server is asked for, by the state of the page.
import { findUpload } from "./uploads.js";

/** Return the query of a state, without the images of this machine. */
export const toQuery = (state) => ({
  images: state.image,
  must: state.must,
  without: state.without,
  boost: state.boost,
  like: state.like,
  unlike: state.unlike,
  folder: state.folder ? [state.folder] : [],
  merge_copies: true,
  ...(state.text && { text: state.text }),
  ...(state.region && { region: state.region }),
  ...(state.date && { date: state.date }),
});

/** Return the options of a request for what a state means: JSON, or a form with the images. */
export function toRequest(state, more = {}) {
  const query = { ...toQuery(state), ...more };
  if (!state.upload.length) return { method: "POST", json: query };
  const form = new FormData();
  for (const key of state.upload) form.append("image", findUpload(key));
  form.append("query", JSON.stringify(query));
  return { method: "POST", form };
}
