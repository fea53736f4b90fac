"""Does a model that has never seen a chip write a right kernel from our context?"""
