"""Other libraries' ways of training the same model: found by find.py, run by torch_gpt2.py."""
