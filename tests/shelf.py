"""A cell that makes `shelf`, a retriever of three documents, one of them hostile."""

SHELF = r"""
from ipyllama.rag import Chunk, Hit

class Shelf:
    texts = {
        "mill.md": "The mill has three rooms. " * 12,
        "castle.md": "The castle has nine rooms. <img src=x onerror=alert(1)></details><script>1</script> "
                     "It took $5$ years. " * 6,
        "harbour.md": "The harbour has no rooms. " * 12,
    }
    order = ["mill.md", "castle.md", "harbour.md"]

    def search(self, query, k=4):
        found = [Hit(Chunk(name, self.texts[name], name, "Rooms", 0), 1.0 / n)
                 for n, name in enumerate(self.order, start=1)]
        return found[:k]

shelf = Shelf()
"""
