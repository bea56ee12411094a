import sys,time; sys.path.insert(0,'tests')
import subprocess,glob,numpy as np
from native.bert import Bert,cosine
import ipyllama
src=glob.glob('/tmp/w-ragA-dl/x/pyduck*/data/embeddings/s*')[0]
for t in ('f32','f16'): subprocess.run([sys.executable,'/work/shared/lab/bert2gguf.py',src,f'/tmp/w-ragA-dl/lab-{t}.gguf','--type',t],stdout=-3)
T=["How do I parse JSON?", "Reading a JSON document in Python", "The cat sat on the mat"," ".join("the quick brown fox jumps over the lazy dog and runs away".split()*15)]
orac=Bert('/tmp/w-ragA-dl/lab-f32.gguf')
for name in ('lab-f32','lab-f16','lab','minilm'):
  for n in (1,2):
   for fa in (None,False):
    l=ipyllama.load(f'/tmp/w-ragA-dl/{name}.gguf',n_threads=n,cache=None,flash_attention=fa)
    ref=[orac(l.tokenize(x)).mean(axis=0) for x in T]
    one=[cosine(l.embed([x])[0],r) for x,r in zip(T,ref)]
    al=[cosine(v,r) for v,r in zip(l.embed(T),ref)]
    t=time.time(); l.embed([T[3]]*24,progress=lambda *a:None); dt=time.time()-t
    print(name,n,fa,np.round(one,5),np.round(al,5),'tok/s',round(24*len(l.tokenize(T[3]))/dt)); l.close()
