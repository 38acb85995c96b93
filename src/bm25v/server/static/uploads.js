// Images of this machine that are searched with: they stay in the browser, for their tab.

const NAME = "bm25v-uploads"; // of the database, and of the tab's list of keys
const STORE = "files";
const KEPT = 24 * 3600 * 1000; // milliseconds
const files = new Map(); // by the key in the address
const addresses = new WeakMap();

const readKeys = () => JSON.parse(sessionStorage.getItem(NAME) ?? "[]");

/** Return the image that an address means; undefined if it is another tab's, or gone. */
export const findUpload = (key) => files.get(key);

/** Return an address for the image, the same each time. */
export function uploadAddress(file) {
  if (!addresses.has(file)) addresses.set(file, URL.createObjectURL(file));
  return addresses.get(file);
}

/** Keep an image for this tab; return its key. */
export function keepUpload(file) {
  const key = `${Date.now()}-${crypto.getRandomValues(new Uint32Array(1))[0]}`; // by age
  files.set(key, file);
  sessionStorage.setItem(NAME, JSON.stringify([...readKeys(), key]));
  use("readwrite", (store) => store.put(file, key)).catch(() => {}); // then not after a reload
  return key;
}

/** Read images that this tab had before it was loaded again. */
export async function restoreUploads(keys) {
  const own = readKeys();
  const missing = keys.filter((key) => !files.has(key) && own.includes(key));
  for (const key of missing) {
    const file = await use("readonly", (store) => store.get(key)).catch(() => undefined);
    if (file) files.set(key, file);
  }
}

/** Delete the images of tabs that were closed long ago. */
export const forgetOldUploads = () =>
  use("readwrite", (store) => store.delete(IDBKeyRange.upperBound(`${Date.now() - KEPT}`))).catch(
    () => {},
  );

/** Do something with the stored files; return its result. */
async function use(mode, work) {
  const database = await new Promise((done, fail) => {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    opening.onsuccess = () => done(opening.result);
    opening.onerror = () => fail(opening.error);
  });
  try {
    const transaction = database.transaction(STORE, mode);
    const request = work(transaction.objectStore(STORE));
    await new Promise((done, fail) => {
      transaction.oncomplete = done;
      transaction.onabort = () => fail(transaction.error);
    });
    return request.result;
  } finally {
    database.close();
  }
}
