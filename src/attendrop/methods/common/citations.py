"""BibTeX entries of papers behind more than one method."""

WU_2021 = """@article{wu2021attendout,
  title   = {Not All Attention Is All You Need},
  author  = {Wu, Hongqiu and Zhao, Hai and Zhang, Min},
  journal = {arXiv preprint arXiv:2104.04692},
  year    = {2021},
  url     = {https://arxiv.org/abs/2104.04692}
}"""
