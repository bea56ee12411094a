"""Our models in other people's frameworks: `adapters.langchain`, `adapters.llama_index`. Each needs its package."""
