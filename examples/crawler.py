"""A web crawler as a pipeline: many actors fetch, a few index, and the program keeps the list of pages to visit.

    monarch-hpc run --local 2 examples/crawler.py

The site is simulated, so no traffic leaves the machine: `download` stands for an HTTP request. The least busy crawler
fetches the next page (`choose`). Words go from the crawlers straight to the indexer of their shard, not through the
program.
"""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, wait

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, endpoint

NUM_PAGES = 300
BROKEN = 13  # a page that has links to it but does not exist
MAX_IN_FLIGHT = 32

WORDS = ["actor", "mesh", "rank", "host", "slice", "cast", "credit", "fabric"]


def download(url: str) -> str:
    number = int(url.removeprefix("/page/"))
    if number == BROKEN:
        raise FileNotFoundError(f"404: {url}")
    links = {number * 2 % NUM_PAGES, (number * 3 + 1) % NUM_PAGES, (number + 7) % NUM_PAGES}
    text = " ".join(WORDS[(number + step) % len(WORDS)] for step in range(number % 5 + 1))
    return text + "".join(f' <a href="/page/{link}">' for link in sorted(links))


class Indexer(Actor):
    """Counts the words in its shard."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @endpoint
    def add(self, words: list[str]) -> None:
        self.counts.update(words)

    @endpoint
    def counted(self) -> dict[str, int]:
        return dict(self.counts)


class Crawler(Actor):
    def __init__(self, indexers: ActorMesh[Indexer]) -> None:
        self.indexers = indexers

    @endpoint
    def crawl(self, url: str) -> list[str]:
        """Index one page and return its links."""
        page = download(url)
        shards: dict[int, list[str]] = {}
        for word in re.findall(r"\b[a-z]+\b", re.sub("<[^>]*>", "", page)):
            shards.setdefault(WORDS.index(word) % len(self.indexers), []).append(word)
        sent = [self.indexers.slice(shard=shard).add.call_one(words) for shard, words in shards.items()]
        for future in sent:  # wait, so that a page the program has seen is in the index
            future.get()
        return re.findall('href="([^"]*)"', page)


hosts = monarch_hpc.hosts()
indexers = hosts.spawn_procs(name="index").flatten("shard").spawn("indexer", Indexer)
crawlers = hosts.spawn_procs(per_host={"crawlers": 2}, name="crawl").spawn("crawler", Crawler, indexers)

todo, seen, broken = ["/page/1"], {"/page/1"}, []
in_flight: dict[Future[list[str]], str] = {}
while todo or in_flight:
    while todo and len(in_flight) < MAX_IN_FLIGHT:
        url = todo.pop()
        in_flight[crawlers.crawl.choose(url)] = url
    done, _ = wait(in_flight, return_when=FIRST_COMPLETED)
    for future in done:
        url = in_flight.pop(future)
        try:
            links = future.result()
        except FileNotFoundError as error:  # raised by the crawler; the other calls continue
            broken.append(str(error))
            continue
        todo += [link for link in links if link not in seen]
        seen.update(links)

counts: Counter[str] = Counter()
for shard_counts in indexers.counted.call().get().values():
    counts.update(shard_counts)
print(f"{len(seen)} pages, {sum(counts.values())} words, most often {counts.most_common(3)}; broken: {broken}")

# The same in one process, to check the result.
pages = [download(url) for url in seen if url != f"/page/{BROKEN}"]
expected = Counter(word for page in pages for word in re.sub("<[^>]*>", "", page).split())
if counts != expected or broken != [f"404: /page/{BROKEN}"]:
    raise SystemExit(f"expected {expected} and one broken page, got {counts} and {broken}")
