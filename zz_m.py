from benchmarks import faq
from ipyllama.rag import Index
p=faq.pairs()
ix=Index.open("faq2",'/tmp/w-ragA-dl/idx')
n=0
for i,(q,a) in enumerate(p):
    h=ix.search(q,20,"vector"); s=list(dict.fromkeys(x.chunk.source for x in h))
    if f"a{i}" not in s[:5]: print(s.index(f"a{i}")+1 if f"a{i}" in s else '>20',q,'|',a[:230].replace('\n',' ')); n+=1
print(n)
