import time,shutil,itertools
from benchmarks import faq
from ipyllama.rag import Index
import ipyllama.rag.index as I
from ipyllama.rag.fuse import fuse
p=faq.pairs()
t=time.time()
ix=Index.create("faq",[(q and f"a{i}",a) for i,(q,a) in enumerate(p)],location='/tmp/w-ragA-dl/idx',progress=lambda *a:None)
print(ix,time.time()-t)
st=ix._store
vs=[];ws=[]
tv=tw=0
for i,(q,a) in enumerate(p):
    t=time.time(); v=ix._checked([q])[0]; vs.append(st.by_vector(v,50,None)); tv+=time.time()-t
    t=time.time(); ws.append(st.by_words(q,50,None)); tw+=time.time()-t
print('ms',tv/len(p)*1e3,tw/len(p)*1e3)
def ev(rank):
    r=[next((j for j,s in enumerate(dict.fromkeys(x),1) if s==f"a{i}"),99) for i,x in enumerate(rank)]
    return [round(sum(x<=k for x in r)/len(r),3) for k in (1,3,5)]+[round(sum(1/x for x in r if x<=5)/len(r),3)]
print('vec',ev([[c.source for c,_ in x] for x in vs]))
print('txt',ev([[c.source for c,_ in x] for x in ws]))
for K in (10,20,60):
  import ipyllama.rag.fuse as F; F.RANK_CONSTANT=K
  for w in (0.1,.15,.2,.25,.3,.4,.5):
    print(K,w,ev([[h.chunk.source for h in fuse(a,b,w)] for a,b in zip(vs,ws)]))
