"""Trained models compressed by every class, before and after fine-tuning.

    python -m torchldr_paper.compression NAME [--device cuda] [--results FOLDER] [--quick]

    methods          what a weight becomes at 2, 5, 10 and 20 times fewer parameters
    starts           quick projections, all weights of a shape together
    training         Adam, and steps that are captured as CUDA graphs
    images, fleet    the paper's SHL and CNN: all methods are trained side by side
    language, texts  an LSTM and a GPT on WikiText-2, one method after the other
    __main__, loop   tables one after the other, and in each what has no row yet
    tables           the results, a line of JSON each, and how they are shown

Rows that are done are not run again.
"""
