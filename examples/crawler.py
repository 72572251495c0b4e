"""A crawler as a pipeline: many fetch, a few index, and the program keeps the list of what is left.

    monarch-hpc run --local 2 examples/crawler.py

The site is made up, so that nothing leaves the machine: `download` stands for a request. Whoever has the least to do
fetches the next page (`choose`). Words go from the crawlers straight to the indexer whose they are, and never through
the program.
"""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, wait

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, endpoint

NUM_PAGES = 300
BROKEN = 13  # a page that the site links to and does not have
MAX_UNDER_WAY = 32

WORDS = ["actor", "mesh", "rank", "host", "slice", "cast", "credit", "fabric"]


def download(url: str) -> str:
    number = int(url.removeprefix("/page/"))
    if number == BROKEN:
        raise FileNotFoundError(f"404: {url}")
    links = {number * 2 % NUM_PAGES, (number * 3 + 1) % NUM_PAGES, (number + 7) % NUM_PAGES}
    text = " ".join(WORDS[(number + step) % len(WORDS)] for step in range(number % 5 + 1))
    return text + "".join(f' <a href="/page/{link}">' for link in sorted(links))


class Indexer(Actor):
    """Counts the words of its shard."""

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
        """Index one page, and return its links."""
        page = download(url)
        shards: dict[int, list[str]] = {}
        for word in re.findall(r"\b[a-z]+\b", re.sub("<[^>]*>", "", page)):
            shards.setdefault(WORDS.index(word) % len(self.indexers), []).append(word)
        sent = [self.indexers.slice(shard=shard).add.call_one(words) for shard, words in shards.items()]
        for future in sent:  # answered: what the program has seen is in the index
            future.get()
        return re.findall('href="([^"]*)"', page)


hosts = monarch_hpc.hosts()
indexers = hosts.spawn_procs(name="index").flatten("shard").spawn("indexer", Indexer)
crawlers = hosts.spawn_procs(per_host={"crawlers": 2}, name="crawl").spawn("crawler", Crawler, indexers)

todo, seen, broken = ["/page/1"], {"/page/1"}, []
under_way: dict[Future[list[str]], str] = {}
while todo or under_way:
    while todo and len(under_way) < MAX_UNDER_WAY:
        url = todo.pop()
        under_way[crawlers.crawl.choose(url)] = url
    done, _ = wait(under_way, return_when=FIRST_COMPLETED)
    for future in done:
        url = under_way.pop(future)
        try:
            links = future.result()
        except FileNotFoundError as error:  # raised by the crawler; the others go on
            broken.append(str(error))
            continue
        todo += [link for link in links if link not in seen]
        seen.update(links)

counts: Counter[str] = Counter()
for shard_counts in indexers.counted.call().get().values():
    counts.update(shard_counts)
print(f"{len(seen)} pages, {sum(counts.values())} words, most often {counts.most_common(3)}; broken: {broken}")

# One process does the same, to check.
pages = [download(url) for url in seen if url != f"/page/{BROKEN}"]
expected = Counter(word for page in pages for word in re.sub("<[^>]*>", "", page).split())
if counts != expected or broken != [f"404: /page/{BROKEN}"]:
    raise SystemExit(f"expected {expected} and one broken page, got {counts} and {broken}")
